# Print the known name nearest to `name`, if it is near: `awk -f nearest.awk name=RECIP RECIPE RUN`.

function least(a, b) { return a < b ? a : b }

# Return the number of letters to insert, remove or change until `a` is `b`.
function distance(a, b,    i, j, row, before, here) {
    for (j = 0; j <= length(b); j++) row[j] = j
    for (i = 1; i <= length(a); i++) {
        before = row[0]
        row[0] = i
        for (j = 1; j <= length(b); j++) {
            here = before + (substr(a, i, 1) != substr(b, j, 1))
            before = row[j]
            row[j] = least(here, least(row[j], row[j - 1]) + 1)
        }
    }
    return row[length(b)]
}

BEGIN {
    name = toupper(substr(ARGV[1], 6))
    nearest = length(name) / 2 + 0.5
    for (k = 2; k < ARGC; k++) {
        far = distance(name, ARGV[k])
        if (far < nearest) {
            nearest = far
            found = ARGV[k]
        }
    }
    print found
}
