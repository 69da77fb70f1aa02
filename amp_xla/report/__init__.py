"""Pages and figures from run folders, read as data: nothing in a folder is executed."""
