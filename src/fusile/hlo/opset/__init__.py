"""The op set, by family. Importing this package fills `hlo.ir.OPS`."""
