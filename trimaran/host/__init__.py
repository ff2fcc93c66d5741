"""The machine below a process: devices, network, files and places, locks, shared memory, threads with a deadline."""
