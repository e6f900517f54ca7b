"""What reports are made of: tables that print in five ways, and a page that stands alone."""
