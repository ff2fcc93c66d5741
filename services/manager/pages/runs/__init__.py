"""The table of runs, the form that submits one, and the buttons that steer one."""
