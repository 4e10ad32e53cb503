# find_package(tutti) for other projects: every room, and tutti::tutti which links them all.
