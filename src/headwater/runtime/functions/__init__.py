"""Users' Python in views: what is declared, the code of this process, and the one boundary through which it is called."""
