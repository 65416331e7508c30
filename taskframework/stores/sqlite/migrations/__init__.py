"""The schema as numbered steps: `NNN_name.sql` leads from version NNN - 1 to NNN and is never changed once released."""
