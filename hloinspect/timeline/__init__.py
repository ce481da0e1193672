"""The Timeline: which stream works when, in whole picoseconds. Also intervals, and loops written out."""
