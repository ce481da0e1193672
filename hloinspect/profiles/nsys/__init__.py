"""Readers of what Nsight Systems (nsys) records: the SQLite files of ``nsys export`` and reports (``.nsys-rep``)."""
