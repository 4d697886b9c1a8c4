"""How are the data generated, given parameters?"""
