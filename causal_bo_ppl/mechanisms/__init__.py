"""How is every variable made from its causes?"""
