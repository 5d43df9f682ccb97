package store

import "errors"

// errLocked is what tryLock answers when somebody else has the lock.
var errLocked = errors.New("locked by somebody else")
