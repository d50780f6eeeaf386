"""Discovery of plugins and skills in any `FileSystem`, local or remote."""
