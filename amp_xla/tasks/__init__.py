"""One package per task, with the code for this task only; a task imports no other task."""
