"""The alerting rules, by what they are about."""
