"""Do tokens move in the direction of their rollout's advantage (Fig. 1 and 9)?"""
