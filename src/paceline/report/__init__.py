"""What people look at: self-contained pages, plots and tables."""
