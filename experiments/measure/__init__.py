"""Tools that time calls of real models and write the tables in knapcache_experiments/measured."""
