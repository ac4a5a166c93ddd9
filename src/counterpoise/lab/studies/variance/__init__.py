"""Is an update less noisy when groups stay whole (Sec. 3.1)?"""
