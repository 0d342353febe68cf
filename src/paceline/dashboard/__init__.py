"""The page of a running run or switch: what it shows is read here, sent as JSON, and drawn by a thin client."""
