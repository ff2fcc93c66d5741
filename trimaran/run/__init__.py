"""What the processes of one run agree on: states, folder, environment, devices, leases, exit codes."""
