"""The figures of a report, a file each: `draw(facts)` makes one, or None where what it shows is not known."""
