"""What has nothing to do with memory."""
