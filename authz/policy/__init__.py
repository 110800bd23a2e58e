"""Policies: what no role can say — time, place, rate, content — as reviewable documents."""
