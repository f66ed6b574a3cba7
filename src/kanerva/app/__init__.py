"""What is done with models on one machine: reports, pages, commands. Nothing below imports it."""
