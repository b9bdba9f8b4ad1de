"""What calls of real models take: the tools that wrote the tables in knapcache_experiments/measured."""
