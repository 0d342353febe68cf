"""Reading what users write: units, and validated TOML whose errors name a line."""
