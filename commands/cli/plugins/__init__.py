"""What `trimaran reward` and `trimaran environment` share: serving and checking plugins."""
