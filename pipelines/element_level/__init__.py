"""Predicting the values of binary variables, and searching near the prediction."""
