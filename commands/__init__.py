"""What stands above the services: the command line, the launcher, the doctor and the
importing of other systems' files. No service imports it."""
