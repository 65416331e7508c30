"""What an outcome means: here, and only here, an attempt becomes COMPLETED, RETRYING, FAILED or another end."""
