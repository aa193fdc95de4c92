"""The figures of a report, a file each: `draw(result)` makes one, or None where what it shows is not known."""
