"""Parts that every room may import: errors, tasks, texts, and the files of Holdfast itself."""
