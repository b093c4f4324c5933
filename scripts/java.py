"""Print the Java that Headwater would start Spark with, or how to get one; behind `make java`."""

import sys

from headwater.core.errors import HeadwaterError
from headwater.spark.java import find_java

try:
    java = find_java()
except HeadwaterError as error:
    sys.exit(str(error))
print(f"Java {java.version} at {java.executable} (from {java.origin})")
