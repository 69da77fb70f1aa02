"""One package per task, with all that only this task needs; a task imports no other task."""
