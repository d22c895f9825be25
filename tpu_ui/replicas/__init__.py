"""One model on several devices, each with a process of its own, run by Ray: whole pictures at once instead of parts."""
