"""An ordered set of places, inside of the objects that stand there: a treap of C structures.

Kept by rising value, among equals by order of arrival. Insertion, removal and search cost O(log n), and nothing is
allocated, so all of it may be done inside of a step. The tree owns nothing: an object that goes leaves it first.
"""

cdef struct Node:
    Node *left
    Node *right
    Node *parent
    uint64_t value
    uint64_t arrival
    uint32_t weight
    PyObject *link        # the object around this, borrowed

cdef uint64_t arrivals = 0
cdef uint32_t randomness = 2463534242


cdef inline bint is_before(Node *one, Node *other) noexcept nogil:
    """Step: the order."""
    return one.value < other.value or (one.value == other.value and one.arrival < other.arrival)


cdef inline void turn_up(Node **root, Node *node) noexcept nogil:
    """Step: exchange a node with its parent."""
    cdef Node *parent = node.parent
    cdef Node *above = parent.parent
    if parent.left == node:
        parent.left = node.right
        if node.right != NULL:
            node.right.parent = parent
        node.right = parent
    else:
        parent.right = node.left
        if node.left != NULL:
            node.left.parent = parent
        node.left = parent
    parent.parent = node
    node.parent = above
    if above == NULL:
        root[0] = node
    elif above.left == parent:
        above.left = node
    else:
        above.right = node


cdef void order_insert(Node **root, Node *node) noexcept nogil:
    """Step: add a node that is in no tree; behind those of its value that are there."""
    global arrivals, randomness
    cdef Node *at = root[0]
    arrivals += 1
    node.arrival = arrivals
    node.left = node.right = node.parent = NULL
    randomness ^= randomness << 13
    randomness ^= randomness >> 17
    randomness ^= randomness << 5
    node.weight = randomness
    if at == NULL:
        root[0] = node
        return
    while True:
        if is_before(node, at):
            if at.left == NULL:
                at.left = node
                break
            at = at.left
        else:
            if at.right == NULL:
                at.right = node
                break
            at = at.right
    node.parent = at
    while node.parent != NULL and node.parent.weight < node.weight:
        turn_up(root, node)


cdef void order_remove(Node **root, Node *node) noexcept nogil:
    """Step: take out a node that is in the tree."""
    cdef Node *child
    while node.left != NULL and node.right != NULL:
        turn_up(root, node.left if node.left.weight > node.right.weight else node.right)
    child = node.left if node.left != NULL else node.right
    if child != NULL:
        child.parent = node.parent
    if node.parent == NULL:
        root[0] = child
    elif node.parent.left == node:
        node.parent.left = child
    else:
        node.parent.right = child
    node.left = node.right = node.parent = NULL


cdef inline Node *order_first(Node *root) noexcept nogil:
    """Step: the least node, NULL of an empty tree."""
    if root != NULL:
        while root.left != NULL:
            root = root.left
    return root


cdef Node *order_at_least(Node *root, uint64_t value) noexcept nogil:
    """Step: the first node of this value or more, or NULL."""
    cdef Node *found = NULL
    while root != NULL:
        if root.value >= value:
            found = root
            root = root.left
        else:
            root = root.right
    return found


cdef Node *order_next(Node *node) noexcept nogil:
    """Step: the node behind this one, or NULL."""
    if node.right != NULL:
        return order_first(node.right)
    while node.parent != NULL and node.parent.right == node:
        node = node.parent
    return node.parent
