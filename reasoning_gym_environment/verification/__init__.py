"""What an answer is worth: reasoning-gym's verifiers, guarded against what an answer holds, and stricter ones."""
