"""What can be asked: where reasoning-gym comes from, the tasks served, their difficulty, what was measured of them."""
