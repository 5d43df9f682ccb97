//go:build amd64 || arm64

package escape

import "encoding/binary"

// Machine code for amd64, written by hand because only it can enter the kernel
// by another calling convention than Go's. Each program ends by itself.
var (
	// tellEffectiveUser exits with the low byte of its effective user id.
	tellEffectiveUser = []byte{
		0xb8, 107, 0, 0, 0, // mov eax, 107 (geteuid)
		0x0f, 0x05, // syscall
		0x0f, 0xb6, 0xf8, // movzx edi, al
		0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
		0x0f, 0x05, // syscall
	}
	// socketByInt80 makes a UDP socket as a 32-bit program would, with the numbers
	// of i386, and exits with 0 or the error.
	socketByInt80 = append([]byte{
		0xb8, 0x67, 0x01, 0, 0, // mov eax, 359 (socket)
		0xbb, 2, 0, 0, 0, // mov ebx, AF_INET
		0xb9, 2, 0, 0, 0, // mov ecx, SOCK_DGRAM
		0x31, 0xd2, // xor edx, edx
		0xcd, 0x80, // int 0x80
	}, exitWithResult...)
	// socketByX32 does the same by the x32 convention.
	socketByX32 = append([]byte{
		0xb8, 41, 0, 0, 0x40, // mov eax, 41 | __X32_SYSCALL_BIT (socket)
		0xbf, 2, 0, 0, 0, // mov edi, AF_INET
		0xbe, 2, 0, 0, 0, // mov esi, SOCK_DGRAM
		0x31, 0xd2, // xor edx, edx
		0x0f, 0x05, // syscall
	}, exitWithResult...)
	exitWithResult = []byte{
		0x31, 0xff, // xor edi, edi
		0x85, 0xc0, // test eax, eax
		0x79, 0x04, // jns +4
		0xf7, 0xd8, // neg eax
		0x89, 0xc7, // mov edi, eax
		0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
		0x0f, 0x05, // syscall
	}
)

// makeELF wraps code into the smallest static program (elf(5)): a file header, one
// segment that is loaded, and the code.
func makeELF(code []byte) []byte {
	const base, headers = 0x400000, 64 + 56
	le := binary.LittleEndian
	b := make([]byte, headers, headers+len(code))
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], 2)            // ET_EXEC
	le.PutUint16(b[18:], 62)           // EM_X86_64
	le.PutUint32(b[20:], 1)            // EV_CURRENT
	le.PutUint64(b[24:], base+headers) // the entry
	le.PutUint64(b[32:], 64)           // where the program header is
	le.PutUint16(b[52:], 64)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], 1)
	p := b[64:]
	le.PutUint32(p[0:], 1) // PT_LOAD
	le.PutUint32(p[4:], 5) // readable and executable
	le.PutUint64(p[16:], base)
	le.PutUint64(p[24:], base)
	le.PutUint64(p[32:], uint64(headers+len(code)))
	le.PutUint64(p[40:], uint64(headers+len(code)))
	le.PutUint64(p[48:], 4096)
	return append(b, code...)
}
