"""What cosmos-rl is given, and what is changed in it while it runs. Enter at `entry.run`."""
