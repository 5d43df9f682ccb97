package fakecli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// WriteReplay writes an executable into the directory that stands in for an
// agent and plays a recording: it reads one line of stdin (or its end), writes
// the bytes to stdout and stderr exactly as they are, in this order, and exits
// with the code, or dies of the signal if one is named ("KILL", "TERM"; "" for
// none). Its arguments are ignored, and so is what stdin still has after the
// first line. It returns the path of the executable.
//
// The executable is a shell script with the bytes at its end, one file, so that
// a sandbox only has to grant that file and the system's directories.
func WriteReplay(dir string, stdout, stderr []byte, exit int, signal string) (string, error) {
	last := fmt.Sprintf("exit %d", exit)
	if signal != "" {
		last = fmt.Sprintf("kill -%s $$", signal)
	}
	// The script names the offset of the bytes behind it, so its own length
	// must not depend on their digits: they are padded.
	script := func(offset int) string {
		return fmt.Sprintf(`#!/bin/sh
IFS= read -r _
cat <&0 >/dev/null 2>&1 &
rest=$!
tail -c +%08d "$0" | head -c %d
tail -c +%08d "$0" | head -c %d >&2
kill $rest 2>/dev/null
wait $rest 2>/dev/null
%s
exit 1
`, offset+1, len(stdout), offset+len(stdout)+1, len(stderr), last)
	}
	head := script(0)
	content := bytes.Join([][]byte{[]byte(script(len(head))), stdout, stderr}, nil)
	path := filepath.Join(dir, "replay")
	// A child that is forked meanwhile would hold the file open for writing, and
	// running it would fail with ETXTBSY (golang.org/issue/22315).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, content, 0o755); err != nil {
		return "", err
	}
	return path, nil
}
