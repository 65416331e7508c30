"""The task store on MongoDB."""
