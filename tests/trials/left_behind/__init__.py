"""What accounts leave behind over every door, how their rights end, and what is heard of them after that."""
