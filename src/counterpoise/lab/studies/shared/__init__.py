"""Do tokens that right and wrong rollouts share cancel, while those specific to success rise?"""
