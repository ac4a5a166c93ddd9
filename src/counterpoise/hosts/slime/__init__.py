"""Import the debug dumps of slime and miles, with the schedule of their optimizer steps."""
