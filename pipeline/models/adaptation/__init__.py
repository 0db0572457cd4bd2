"""What is put into a frozen backbone, one method a file."""
