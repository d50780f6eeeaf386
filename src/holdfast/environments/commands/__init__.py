"""Commands of an environment: run one to its end, or start one that keeps running."""
