package process

import (
	"fmt"
	"time"
)

const (
	// treeGoneLimit bounds the wait for killed processes to be gone. A process
	// in uninterruptible sleep dies late.
	treeGoneLimit = 5 * time.Second
	// treePause is the pause between two looks.
	treePause = 2 * time.Millisecond
)

// TreeLeftError: processes of a turn are still there although they were
// killed.
type TreeLeftError struct {
	Pids []int
}

func (e *TreeLeftError) Error() string {
	return fmt.Sprintf("processes %v of the turn are still there %s after SIGKILL", e.Pids, treeGoneLimit)
}
