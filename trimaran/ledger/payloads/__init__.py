"""Files of scored groups and of archived records, in a folder or a bucket."""
