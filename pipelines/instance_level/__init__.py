"""Predicting a property of an instance: is it feasible, and what is its optimal value?"""
