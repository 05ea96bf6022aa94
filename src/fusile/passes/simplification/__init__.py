"""The rules of algebraic simplification, a table a family of ops. The law they keep is in docs/rules.md."""
