"""Are tokens that an update boosts more valuable than those it suppresses (Fig. 5)?"""
